"""A rough database: time-outs, full connection limits, fail-over, poolers, other versions, other clocks."""

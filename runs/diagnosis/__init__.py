"""Why runs fail: failures that are alike, in groups, and where a failed run parted from the last good one."""

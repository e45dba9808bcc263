"""The parts that pages of the console are made of, as plain data: what to show, never how to fetch it."""

"""A workflow for stories in the browser."""

"""Every part of the console in every state, on pages that exist only under AGENTOPS_DEBUG: to look at, and to test."""

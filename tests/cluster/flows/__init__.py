"""An app with workflows for the cluster's tests, found through AGENTOPS_APPS."""

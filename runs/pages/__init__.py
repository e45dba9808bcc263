"""What pages say about runs: computed here, so that views and templates decide nothing."""

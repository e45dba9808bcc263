"""Who may do what: pages for whoever manages people, and the verbs behind them."""

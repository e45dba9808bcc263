"""The inbox: everything that waits for people, its list, its pages, and the verbs that deal it out."""

"""One judge of labels: observations of examples in; what is wrong with their labels out, or that nobody can tell."""

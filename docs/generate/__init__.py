"""Pages of the documentation site that come from the code, and the checks of the built site."""

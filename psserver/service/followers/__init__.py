"""The job's other servers, as server 0 sees them."""

"""The results: tables, a picture, and every sample as JSON."""

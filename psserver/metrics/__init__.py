"""What a ps-server shows to Prometheus. Nothing here is imported while metrics are off."""

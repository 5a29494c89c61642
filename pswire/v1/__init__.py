"""Generated from protos/pswire/v1 by scripts/protos; do not edit the modules here."""

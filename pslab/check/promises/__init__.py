"""What every decision log and run folder keeps, whatever the policy. One small class per promise."""

"""What holds for every decision log and run folder, whatever the policy. One small class per property."""

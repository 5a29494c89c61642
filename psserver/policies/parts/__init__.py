"""The parts that a policy is composed of: gate, trigger, staleness rule, weight, cancel rule."""

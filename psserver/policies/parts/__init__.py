"""The five choices a policy is composed of: gate, trigger, staleness rule, weight, cancel."""

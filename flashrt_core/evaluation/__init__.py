"""Whether a policy does its task: simulated episodes, success rates, tiers against each other."""

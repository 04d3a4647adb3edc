"""LingBot-VA on the CPU."""

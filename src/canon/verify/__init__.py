"""Decide what a recovered model proves, trusting neither the attack nor the recovery."""

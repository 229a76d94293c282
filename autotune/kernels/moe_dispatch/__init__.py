"""Mixture-of-experts dispatch: tokens to the ranks of their experts, laid out by expert."""

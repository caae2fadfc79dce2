"""Losses and the formulas they are made of."""

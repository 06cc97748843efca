"""Proof that an output holds each row of its input once, from what lies there."""

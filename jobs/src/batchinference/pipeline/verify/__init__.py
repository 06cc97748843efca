"""Verifies with the stored files that an output holds each row of its input once."""

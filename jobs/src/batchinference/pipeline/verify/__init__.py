"""Verification that an output holds each row of its input once, based on the stored files."""

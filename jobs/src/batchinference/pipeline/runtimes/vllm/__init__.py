"""Runs language models with vLLM, through Ray Data's LLM processor of several operators."""

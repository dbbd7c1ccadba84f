"""Trainers whose recipes are tables of keys: what each key means is data, one file for each trainer."""

"""What lies on disk: whole directories or none, each with a manifest that says what it was made from."""

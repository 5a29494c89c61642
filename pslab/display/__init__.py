"""What a person sees while a run goes on, and how a status is shown."""

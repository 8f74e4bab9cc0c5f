"""Pictures of schedules, timelines and memory."""

"""The buffer receives fragments, holds one side back if it is ahead, and makes rollouts of them."""

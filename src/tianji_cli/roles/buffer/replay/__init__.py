"""The replay memory: slots that fragments are received into, an index of samples, and what draws them."""

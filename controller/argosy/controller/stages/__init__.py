"""One file per stage of the loop. Each is a plain coroutine or function that a newcomer can read on its own."""

"""Pure algorithms: numpy for what the controller computes, torch for what the trainer differentiates. No I/O."""

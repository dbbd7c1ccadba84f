"""From operators to a step: blocks are priced, stages composed, the step and its memory put together."""

"""Values shared by several rooms; names and values that DeepSpeed also has are DeepSpeed's."""

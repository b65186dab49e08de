"""Views of a predicted step, and of a comparison of meshes."""

"""The collectives of `dsexplore.comm`, their log and their sweep."""

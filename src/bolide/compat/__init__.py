"""Old and foreign spellings, as tables at the edge: nothing below this layer knows them."""

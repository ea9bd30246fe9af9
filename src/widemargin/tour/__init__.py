"""`widemargin tour`: from squared error to ArcGrad, a short section each with a picture to move, and the numbers."""

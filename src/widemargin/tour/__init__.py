"""`widemargin tour`: a page from squared error to ArcGrad in short sections with interactive pictures."""

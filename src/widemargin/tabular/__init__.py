"""Small networks on tables: many models trained at once, cross-validation, comparisons, the estimator."""

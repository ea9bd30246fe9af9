"""`widemargin lab`: one offline page with the curves of chosen losses and sliders for their options."""

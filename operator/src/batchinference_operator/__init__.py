"""The operator: runs each BatchInference as a KubeRay RayJob and keeps its status up to date."""

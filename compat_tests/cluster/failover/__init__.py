"""Clusters whose brokers are stopped, killed, paused or cut off while clients use them."""

"""What all tests share."""

import torch

# Tests run one a core: small models lose more time to threads that wait for each other than they gain.
torch.set_num_threads(1)

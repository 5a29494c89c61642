"""Handwritten digits in a PyTorch loop of one's own; the line with `distribute` is what parameter servers add.

python examples/torch_loop.py                                        alone
ps-lab run --script examples/torch_loop.py --workers 2 --servers 1   with two workers
"""

import torch
from digits_data import digits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import psworker.torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer = psworker.torch.distribute(optimizer, model)

data = TensorDataset(*map(torch.tensor, digits("train")))
sampler = DistributedSampler(data, optimizer.session.size, optimizer.session.rank)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for images, labels in DataLoader(data, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels.long())
        loss.backward()
        optimizer.step(samples=len(images), loss=loss)
    scheduler.step()
optimizer.close()  # waits for the others; the model has the job's last version

images, labels = map(torch.tensor, digits("heldout"))
accuracy = (model(images).argmax(dim=1) == labels).float().mean()
print(f"{optimizer.session.info.worker}: version {optimizer.session.over.version}, accuracy {accuracy:.3f}")

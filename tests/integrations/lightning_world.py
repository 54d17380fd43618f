"""Train in two processes through Lightning. A program: a test has threads already, and could not be forked."""

import sys
from pathlib import Path

import torchvision_operators  # noqa: F401, before lightning, which imports torchvision

# isort: split
import lightning.pytorch as L
import torch
import torch.nn.functional as F
from small import IDS, PLAN, Net, fresh, pictures, sgd
from torch.utils.data import DataLoader

import sgoif
from sgoif.integrations.lightning import InfluenceCallback


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return sgd(self)


def main(folder: Path) -> None:
    train_set, holdout = pictures()
    module = fresh(Module)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_fork",  # processes that are spawned import torch and Lightning anew: 18 s
        max_epochs=2,
        callbacks=[InfluenceCallback(holdout, out=str(folder / "run"), plan=PLAN)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, DataLoader(sgoif.with_ids(train_set, IDS), 10))
    torch.save(module.net.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

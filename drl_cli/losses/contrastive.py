"""Contrastive losses of embeddings, as pure functions of batched tensors."""

from drl_cli.utils.lazy import Tensor, torch


def info_nce(predicted: Tensor, target: Tensor, valid: Tensor, temperature: float) -> Tensor:
    """Return InfoNCE losses of predicted embeddings, `[B, L]` (van den Oord et al. 2018, arXiv 1807.03748, eq. 4).

    `predicted` and `target` `[B, L, Z]` have the embeddings of L steps. At each step, the loss of row i is

        -log(exp(s_ii) / sum_k exp(s_ik)), with s_ik = cos(predicted_i, target_k) / temperature

    The sum contains row i itself and all rows k that have this step, whose `valid` `[B, L]` is True.
    """
    normalize = torch.nn.functional.normalize
    predicted, target = (normalize(each, dim=-1).transpose(0, 1) for each in (predicted, target))  # [L, B, Z]
    similarity = predicted @ target.transpose(1, 2) / temperature  # [L, B, B]
    own = torch.eye(len(valid), dtype=torch.bool, device=valid.device)
    is_in_sum = valid.t().unsqueeze(1) | own  # [L, B, B]
    log_probs = similarity.masked_fill(~is_in_sum, -torch.inf).log_softmax(-1)
    return -log_probs.diagonal(dim1=1, dim2=2).t()

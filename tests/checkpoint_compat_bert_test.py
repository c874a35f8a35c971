#!/usr/bin/env python3
"""Checkpoints of bert load in transformers with an equal loss, and those of transformers load in Fusion: masked language
modelling as BertForMaskedLM, two towers as BertModel.

    $FUSION_CACHE/python/bin/python tests/checkpoint_compat_bert_test.py BUILD
"""
import copy
import unittest

from compat_support import FRACTION, CompatibilityTest  # first: it sets the environment

import torch
import transformers

CONTEXT = 16
TEXT = bytes((i * i + 7 * i) % 251 for i in range(3000))
MASK = 256  # the last id, after the bytes
SEED = 0    # training.seed, which the jobs leave out
TEMPERATURE = 0.07


def bert_config(vocabulary, **options):
    return transformers.BertConfig(num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=40,
                                   max_position_embeddings=CONTEXT, vocab_size=vocabulary, hidden_dropout_prob=0,
                                   attention_probs_dropout_prob=0, initializer_range=0.3, **options)


def model_yaml(vocabulary, towers):
    return f"""    family: bert
    config: {{layers: 2, heads: 2, width: 16, intermediate: 40, context: {CONTEXT}, vocabulary: {vocabulary}, towers: {towers}}}"""


def random_below(bound, stream, counter):
    """worker/data/sampling.h."""
    def mix(x):
        x = (x + 0x9e3779b97f4a7c15) % 2**64
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 % 2**64
        x = (x ^ x >> 27) * 0x94d049bb133111eb % 2**64
        return x ^ x >> 31
    return mix(mix(mix(SEED) ^ stream) ^ counter) * bound >> 64


class MaskedLanguageModel(CompatibilityTest):
    MODEL = model_yaml(257, towers=1)
    DATA = "kind: text, uri: text"
    BATCH, MICRO, BATCHES = 4, 2, 3

    @classmethod
    def write_data(cls, folder):
        (folder / "text").write_bytes(TEXT)

    def validation_batch(self):
        """Windows of the tail, masked as worker/data/masking.h says: what the model sees, and the labels."""
        first = len(TEXT) - int(len(TEXT) * FRACTION)
        starts, count = len(TEXT) - first - CONTEXT, self.BATCH * self.BATCHES
        windows = torch.tensor([list(TEXT[b:b + CONTEXT]) for b in (first + i * starts // count for i in range(count))])
        chosen, at_least, fate, replacement = (0x6d61736b << 8 | draw for draw in range(4))
        shown, labels = windows.clone(), torch.full_like(windows, -100)
        for index in range(count):
            places = [t for t in range(CONTEXT) if random_below(100, chosen, index * CONTEXT + t) < 15]
            for t in places or [random_below(CONTEXT, at_least, index)]:
                labels[index, t] = windows[index, t]
                one_of_ten = random_below(10, fate, index * CONTEXT + t)
                if one_of_ten < 8:
                    shown[index, t] = MASK
                elif one_of_ten == 8:
                    shown[index, t] = random_below(MASK, replacement, index * CONTEXT + t)
        return shown, labels

    def loss(self, model):
        shown, labels = self.validation_batch()
        with torch.no_grad():
            return model.eval()(input_ids=shown, labels=labels).loss.item()

    def test_transformers_loads_ours(self):
        result = self.train("ours")
        model = self.from_pretrained(transformers.BertForMaskedLM, result)
        self.assertIs(model.cls.predictions.decoder.weight, model.bert.embeddings.word_embeddings.weight)
        self.assert_close(self.loss(model), result["validationLoss"])

    def test_ours_loads_theirs(self):
        torch.manual_seed(5)
        model = transformers.BertForMaskedLM(bert_config(257))
        torch.nn.init.normal_(model.cls.predictions.bias, std=0.3)  # starts at 0
        expected = self.loss(model)
        for name, options in {"whole": {}, "shards": {"max_shard_size": "20KB"}}.items():
            with self.subTest(variant=name):
                model.save_pretrained(self.folder / name, **options)
                self.assertEqual((self.folder / name / "model.safetensors.index.json").exists(), name == "shards")
                self.assert_close(self.evaluate(f"their-{name}", name)["validationLoss"], expected)


class Towers(CompatibilityTest):
    MODEL = model_yaml(256, towers=2)
    DATA = "kind: textPairs, uri: pairs"
    BATCH, MICRO, BATCHES = 8, 4, 2
    # Halves of unequal lengths with one space between, which is where a record is cut; some longer than the context.
    PAIRS = [(bytes(97 + (i * k * k + 3 * k) % 26 for k in range(3 + i % 17)),
              bytes(97 + (i + 5 * k * k) % 26 for k in range(20 - i % 17))) for i in range(90)]

    @classmethod
    def write_data(cls, folder):
        (folder / "pairs").write_bytes(b"\n%\n".join(b" ".join(pair) for pair in cls.PAIRS))

    def loss(self, model):
        pairs = self.validation_rows(self.PAIRS)
        embeddings = []
        for side in range(2):
            ids = torch.tensor([list(pair[side][:CONTEXT].ljust(CONTEXT, b"\0")) for pair in pairs])
            kept = (ids != 0).long()
            with torch.no_grad():
                states = model.eval()(input_ids=ids, attention_mask=kept).last_hidden_state
            mean = (states * kept[:, :, None]).sum(1) / kept.sum(1, keepdim=True)
            embeddings.append(torch.nn.functional.normalize(mean))
        # The negatives of a pair are the others of its micro-batch.
        losses = [torch.nn.functional.cross_entropy(first @ second.T / TEMPERATURE, torch.arange(self.MICRO))
                  for first, second in zip(*(side.split(self.MICRO) for side in embeddings))]
        return torch.stack(losses).mean().item()

    def test_transformers_loads_ours(self):
        result = self.train("ours")
        model = self.from_pretrained(transformers.BertModel, result, add_pooling_layer=False)
        self.assert_close(self.loss(model), result["validationLoss"])

    def test_ours_loads_theirs(self):
        torch.manual_seed(6)
        whole = transformers.BertModel(bert_config(256))  # its pooler is of no variable here
        expected = self.loss(whole)
        head = transformers.BertForMaskedLM(bert_config(256))
        head.bert.load_state_dict(whole.state_dict(), strict=False)
        half = copy.deepcopy(whole).to(torch.bfloat16)
        variants = {"whole": (whole, expected), "inside": (head, expected), "half": (half, self.loss(copy.deepcopy(half).float()))}
        for name, (model, loss) in variants.items():
            with self.subTest(variant=name):
                model.save_pretrained(self.folder / name)
                self.assert_close(self.evaluate(f"their-{name}", name)["validationLoss"], loss)


if __name__ == "__main__":
    unittest.main(verbosity=2)
